"""`dw`: the command line of Holdfast. One file per noun; nothing heavy is imported before a command needs it."""

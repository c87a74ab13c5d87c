"""`dw`: the command line of Backstay. One file per noun; nothing heavy is imported before a command needs it."""

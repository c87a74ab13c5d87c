"""`dw doctor`: checks of an installation, each with its fix. One file for each place where something can be wrong."""

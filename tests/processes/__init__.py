"""Several processes on one file, trouble with the disk, damage, and lost transport, from the outside."""

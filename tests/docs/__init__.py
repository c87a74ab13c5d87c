"""The documentation is true: its programs run, its commands print what it shows, its links lead somewhere."""

"""Programs for those who work on Backstay; nothing of it is installed."""

"""Reading: answers the questions of operators about runs without blocking the engine's thread."""

"""Values at the border: Python objects, call arguments and exceptions as Avro payloads, and back."""

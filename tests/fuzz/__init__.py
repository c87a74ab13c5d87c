"""`make fuzz`: every operation of the OpenAPI document under generated requests, against a real server process."""

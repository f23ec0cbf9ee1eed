"""What clients send and get, as pydantic models: the edge of the server, and its OpenAPI description."""

"""Text around the tokens: chat templates, streaming, stop strings."""

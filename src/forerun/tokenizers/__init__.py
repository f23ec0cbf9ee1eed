"""Text to token ids and back: tokenizers from GGUF files and Hugging Face folders, and how two of them compare."""

"""The HTTP server: OpenAI's and llama.cpp's endpoints over one loaded model."""

"""The engine over HTTP: OpenAI's API, Prometheus metrics, and a page that shows the engine live."""

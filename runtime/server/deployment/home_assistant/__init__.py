"""The add-on of Home Assistant: its configuration, its page, and its start. docs/service.md says how it is installed."""

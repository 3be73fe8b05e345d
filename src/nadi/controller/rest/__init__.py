"""The controller's REST face: Pravega's paths under `/v1`, health, and a description of itself."""

"""The controller's REST interface: Pravega's paths under `/v1`, nadi's own, health, and the OpenAPI description."""

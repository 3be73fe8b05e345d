"""What the controller does periodically by itself."""

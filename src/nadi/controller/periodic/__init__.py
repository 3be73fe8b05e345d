"""What the controller does again and again by itself."""

"""What comes from elsewhere and goes into streams: requests, log files, messages. Each source has a room of its own."""

"""Commands that write what comes from elsewhere into streams."""

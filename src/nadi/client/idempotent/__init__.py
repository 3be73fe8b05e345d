"""Events with numbers that outlive their writer: whoever writes them again under its id writes each exactly once."""

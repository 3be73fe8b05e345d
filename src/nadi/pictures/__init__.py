"""Pictures of a stream's segments over time: key range up, time across, shade for the rate."""

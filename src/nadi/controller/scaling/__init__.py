"""When a stream's segments are split and merged: `judge` decides, by its policy and load; `rounds` carries it out."""

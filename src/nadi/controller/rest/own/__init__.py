"""What every server answers by itself, whichever of its cluster has the active controller: health, metrics, and the
cluster as it sees it."""

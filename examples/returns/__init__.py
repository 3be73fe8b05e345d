"""Which sale each return of a shop belongs to: two streams of real sales and returns, joined within thirty days."""

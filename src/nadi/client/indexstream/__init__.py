"""A stream of one segment as an index: records of one size whose fields never fall, as official clients write them."""

"""What a cluster stands on, each behind a seam: names that are written once (`engine`), and small records that are
changed by compare-and-set (`registry`). The engines know nothing of containers, logs or servers.
"""

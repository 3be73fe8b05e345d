"""Proxies through which any server answers for the whole cluster, and the active controller's router to segments in
other stores. They never see records or placement.
"""

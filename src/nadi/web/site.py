"""The page, with all that it asks for, as a server's REST port serves it."""

from __future__ import annotations

from nadi.controller.rest.endpoint import Site
from nadi.web import now, places, searched, searching, unreadable
from nadi.web.clients import Clients
from nadi.web.events import Readers
from nadi.web.page import pages


def live_site(clients: Clients) -> Site:
    """For an Api. clients: whoever makes them opens their door once the server has doors, and closes them."""
    through = (bound(clients) for bound in (*places.BOUND, *searching.BOUND, *searched.BOUND, *unreadable.BOUND))
    asked = (*now.ENDPOINTS, *through, *Readers(clients).endpoints())
    return Site(asked, pages())

"""The admin API and the web console: inspect and manage topics, keys and dead letters over HTTP.

``mount(app, pubsub.broker, access)`` puts both into a FastAPI or Starlette app of your own.
"""

from __future__ import annotations

from seriatim.extras import require_extra

require_extra("console", "fastapi", "jinja2", "uvicorn", what="the console")

from seriatim.console.app import Console, mount  # noqa: E402
from seriatim.console.server import ConsoleServer  # noqa: E402
from seriatim.engine.access_tokens import Access  # noqa: E402

__all__ = ["Access", "Console", "ConsoleServer", "mount"]

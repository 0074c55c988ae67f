"""`python -m bench.server FOLDER`: static files on 127.0.0.1, with byte ranges, as fast as the system can send."""

from __future__ import annotations

import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    """Serves the files of `folder`, whole or from one byte range."""

    protocol_version = "HTTP/1.1"
    folder = Path()

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
        """Answer 200, 206 for a range, or 404."""
        path = (self.folder / self.path.lstrip("/")).resolve()
        if not path.is_relative_to(self.folder) or not path.is_file():
            self.send_error(404)
            return
        size = path.stat().st_size
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        begin = int(wanted[1]) if wanted else 0
        end = min(int(wanted[2]) + 1, size) if wanted and wanted[2] else size
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        self.wfile.flush()
        with path.open("rb") as file:
            self.connection.sendfile(file, begin, end - begin)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Stay silent."""


def main() -> None:
    """Serve the folder named on the command line on a free port, which is printed first."""
    Handler.folder = Path(sys.argv[1]).resolve()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        print(server.server_port, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()

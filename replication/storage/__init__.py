"""Tables and files: how each is written and read."""

import os

# Without credentials delta-rs warns of each place where it has looked for them, a screen before our own sentence. It
# reads this when it is imported, so here, before any module that imports it.
os.environ.setdefault("RUST_LOG", "warn,aws_config=error")

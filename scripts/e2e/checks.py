"""What the scripts of this folder share."""


class Report:
    """Counts the checks and keeps the failures."""

    def __init__(self):
        self.checked, self.failed = 0, []

    def equal(self, what, got, want):
        self.checked += 1
        if got != want:
            self.failed.append(f"{what}\n    found    {got!r}\n    expected {want!r}")

    def true(self, what, holds, found=None):
        self.checked += 1
        if not holds:
            self.failed.append(f"{what}: found {found!r}")

    def refused(self, what, kind, call):
        self.checked += 1
        try:
            self.failed.append(f"{what}: found {call()!r}, expected {kind.__name__}")
        except kind:
            pass

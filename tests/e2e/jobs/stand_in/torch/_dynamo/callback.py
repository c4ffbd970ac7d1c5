"""Calls whoever has registered, as torch does around each compile."""


class Handler:
    def __init__(self):
        self.clear()

    def clear(self):
        self.start, self.end = [], []

    def register_start_callback(self, callback):
        self.start.append(callback)

    def register_end_callback(self, callback):
        self.end.append(callback)

    def run_start_callbacks(self, args):
        for callback in self.start:
            callback(args)

    def run_end_callbacks(self, args):
        for callback in self.end:
            callback(args)


callback_handler = Handler()

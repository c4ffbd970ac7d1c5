"""The order of calls in Triton 3.6."""


class Config:
    def __init__(self, kwargs, num_warps=4, num_stages=3, num_ctas=1, pre_hook=None):
        self.kwargs = kwargs
        self.num_warps, self.num_stages, self.num_ctas = num_warps, num_stages, num_ctas
        self.pre_hook = pre_hook

    def all_kwargs(self):
        options = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        return {**self.kwargs, **options, "num_ctas": self.num_ctas}


class Autotuner:
    def __init__(self, fn, configs, key, do_bench):
        self.fn, self.configs, self.keys, self.do_bench = fn, configs, key, do_bench
        self.arg_names = fn.arg_names
        self.cache = {}

    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)

    def _bench(self, *args, config, **meta):
        def kernel_call():
            if config.pre_hook:
                config.pre_hook({**self.nargs, **meta})
            self.fn.run(*args, **{**meta, **config.all_kwargs()})

        return self.do_bench(kernel_call, quantiles=(0.5, 0.2, 0.8))

    def run(self, *args, **kwargs):
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        all_args = {**self.nargs, **kwargs}
        _args = {k: v for k, v in all_args.items() if k in self.arg_names}
        key = [_args[key] for key in self.keys if key in _args]
        key += [str(arg.dtype) for arg in _args.values() if hasattr(arg, "dtype")]
        key = tuple(key)
        if key not in self.cache:
            pruned_configs = self.prune_configs(kwargs)
            timings = {c: self._bench(*args, config=c, **kwargs) for c in pruned_configs}
            self.cache[key] = min(timings, key=timings.get)
        self.best_config = self.cache[key]
        if self.best_config.pre_hook:
            self.best_config.pre_hook({**self.nargs, **kwargs})
        return self.fn.run(*args, **kwargs, **self.best_config.all_kwargs())

    def prune_configs(self, kwargs):
        return self.configs


def autotune(configs, key, do_bench):
    return lambda fn: Autotuner(fn, configs, key, do_bench)

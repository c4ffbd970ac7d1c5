"""Who asks for CUDA while modules are imported?"""
import os, sys, time, traceback
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"; os.environ["OPENBLAS_NUM_THREADS"] = "1"
def fds(): 
    out=[]
    for f in os.listdir("/proc/self/fd"):
        try: out.append(os.readlink(f"/proc/self/fd/{f}"))
        except OSError: pass
    return sorted(x for x in out if "/dev/nv" in x)
t=time.time(); import torch
print("torch", torch.__version__, "%.1f"%(time.time()-t), "threads", len(os.listdir("/proc/self/task")), fds(), flush=True)
for name in ("is_available","device_count","_device_count_nvml","_lazy_init","get_device_capability"):
    def wrap(name=name, f=getattr(torch.cuda, name)):
        def g(*a,**k):
            print("CALL", name, "".join(traceback.format_stack(limit=7)[:-1])[-900:], flush=True)
            return f(*a,**k)
        return g
    setattr(torch.cuda, name, wrap())
for m in ("torch._dynamo","torch._inductor.compile_fx","triton","torch.distributed.run","torch._inductor.runtime.triton_heuristics","torch._inductor.codegen.triton","torch._inductor.kernel.mm","triton.language","triton.compiler","triton.backends.nvidia.driver","torch.utils.cpp_extension"):
    t=time.time()
    try: __import__(m)
    except Exception as e: print(m, repr(e))
    print(m, "%.1f"%(time.time()-t), "threads", len(os.listdir("/proc/self/task")), fds(), flush=True)
pid=os.fork()
if pid==0:
    print("bad fork", torch.cuda._is_in_bad_fork(), "maps", sorted({l.split("/")[-1].strip() for l in open("/proc/self/maps") if "libcuda" in l or "nvidia-ml" in l}))
    print(torch.ones(3, device="cuda").sum().item()); os._exit(0)
print(os.waitpid(pid,0))

"""llama.cpp's HTTP server out of the prebuilt wheel `xllamacpp`, where there is no build of it.

    python bench/xllamacpp_server.py MODEL.gguf --port 8111 --parallel 16 --threads 2

The wheel is compiled for many machines and picks its kernels at start; a native build of
`llama-server` may be faster. Takes the settings that `bench/contestants.py` gives `llama-server`.
"""

import argparse
import threading

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a GGUF file with xllamacpp.")
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--parallel", type=int, default=16)
    parser.add_argument("--context", type=int, default=40_960)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.model_alias = ["m"]
    params.hostnames = ["127.0.0.1"]
    params.port = options.port
    params.n_parallel = options.parallel
    params.n_ctx = options.context
    params.n_batch = 2_048
    params.n_ubatch = 512
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.ui = False
    server = xllamacpp.Server(params)
    print(f"listening on {server.listening_address}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()

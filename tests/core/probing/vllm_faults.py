"""vLLM's server with faults planted in its own prefix cache. The file PLANTED_FAULT names the one
that is in force, or is empty. Run by the engines' Python.

The engine core is a process of its own, forked or started with this file.
"""

import os
import runpy
from pathlib import Path

from vllm.v1.core import kv_cache_utils
from vllm.v1.core.block_pool import BlockPool

FILE = Path(os.environ["PLANTED_FAULT"])
sound_block = BlockPool.get_cached_block
sound_eviction = BlockPool._maybe_evict_cached_block
sound_adapter_keys = kv_cache_utils._gen_lora_extra_hash_keys


def cached_block(pool, block_hash, groups):
    """A block of another request, or the one before in the table, which is off by one."""
    found = sound_block(pool, block_hash, groups)
    fault = FILE.read_text()
    if found and fault == "another_block":
        hits = [block.block_hash for block in found]
        cached = (block for block in pool.blocks if block.block_hash not in (None, *hits))
        return [next(cached)]
    if found and fault == "off_by_one":
        before = pool.blocks[found[0].block_id - 1]
        return [before if before.block_hash else found[0]]
    return found


def evict(pool, block):
    """The entry of a block that is written anew stays."""
    if FILE.read_text() != "stale":
        return sound_eviction(pool, block)
    block.reset_hash()
    return True


def adapter_keys(request):
    """The key of a block has no name of an adapter."""
    return [] if FILE.read_text() == "no_adapter" else sound_adapter_keys(request)


BlockPool.get_cached_block = cached_block
BlockPool._maybe_evict_cached_block = evict
kv_cache_utils._gen_lora_extra_hash_keys = adapter_keys

if __name__ == "__main__":
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")

"""Descriptions of cards as cuDNN wants them, from the table of cards."""

from __future__ import annotations

import json

from flexsdpa.spec.families import Card

MEASURED: dict[str, object] = {
    "maxGridSize": [2147483647, 65535, 65535],
    "maxBlockSize": [1024, 1024, 64],
    "regsPerBlock": 65536,
    "warpSize": 32,
    "maxSharedMemoryPerBlock": 49152,
    "reservedSharedMemoryPerBlock": 1024,
    "maxRegistersPerSM": 65536,
    "maxThreadsPerBlock": 1024,
    "pciDeviceId": 6,
    "isTccDriver": 0,
    "supportCoopLaunch": 1,
    "totalGlobalMem": 150109880320,
    "smClockRateKHz": 1980000,
    "memClockRateKHz": 3201000,
    "l2CacheSize": 62914560,
    "cudaDeviceId": 0,
    "driverVer": 13000,
    "smCountOrigin": 0,
    "oversizedSharedMemoryPerBlock": 0,
    "memoryBusWidth": 5120,
}
"""What a real card says of itself (an H200 with cuDNN 9.19; the last three since 9.28), and what we leave so for the others:
clocks, memory and bus decide speed, not whether a plan exists."""


def description(card: Card) -> str:
    """The JSON that ``cudnn.create_device_properties`` takes."""
    own = {
        "deviceVer": 10 * card.number,
        "deviceName": card.name,
        "multiProcessorCount": card.multiprocessors,
        "maxSharedMemoryPerBlockOptin": card.shared_bytes,
        "maxThreadsPerSM": card.threads,
        "maxCtasPerSM": card.blocks,
    }
    return json.dumps({**MEASURED, **own})

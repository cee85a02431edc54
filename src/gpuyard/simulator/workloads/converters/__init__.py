"""Native traces of public GPU clusters, converted to the columns that the simulator reads: one file for each format."""

from gpuyard.simulator.workloads.converters import acme, helios, pai, philly
from gpuyard.simulator.workloads.converters.native_job import TraceFormat

TRACE_FORMATS: dict[str, TraceFormat] = {
    "helios": helios.FORMAT,
    "philly": philly.FORMAT,
    "pai": pai.FORMAT,
    "acme": acme.FORMAT,
}

"""Reading lines of a kernel log: total, sans I/O, one file a family of hardware.

``parser.parse_line`` takes one line, ``folding.Reader`` a stream in which one event may be spread over several records.
"""

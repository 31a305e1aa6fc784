"""Metal without a Mac: a software device behind the Objective-C messages that Metal gets.

objc_double answers the messages (an Objective-C runtime and Metal's classes, in Python); msl turns
Metal's language into C++; cpu compiles that for this processor and runs it, with or without
checks; include is our metal_stdlib. Nothing here imports the rest of tinyrvllm: it is what the rest
is tested against.
"""

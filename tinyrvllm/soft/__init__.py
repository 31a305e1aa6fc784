"""Metal without a Mac: a software device behind the Objective-C messages that Metal gets."""

"""One method, run(batch): where the engine meets a device."""

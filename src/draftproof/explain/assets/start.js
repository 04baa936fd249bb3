// Everything is defined; now it may be drawn.
draftproof.settings.start();
for (const name of ["table", "steps", "bars", "picture", "roll", "chain", "pay", "faults"]) draftproof[name].start();

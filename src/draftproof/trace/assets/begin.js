// Everything is defined; now it may be drawn.
draftproof.settings.start();
for (const name of ["figures", "words", "details", "strip", "charts"]) draftproof[name].start();

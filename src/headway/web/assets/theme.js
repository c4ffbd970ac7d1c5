"use strict";
// Before the first paint, so that nothing flashes.
{
  const saved = localStorage.getItem("headway-theme");
  if (saved === "dark" || saved === "light") document.documentElement.dataset.theme = saved;
}

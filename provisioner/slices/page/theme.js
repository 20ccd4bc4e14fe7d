// Sets the theme before the first paint; a classic script, since modules run after it.
(() => {
  let theme = "";
  try {
    theme = localStorage.getItem("theme") ?? "";
  } catch {
    // Storage is blocked: the system's theme it is.
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();

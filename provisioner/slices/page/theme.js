// Sets the theme before the first paint. This is a classic script, because modules run after the first paint.
(() => {
  let theme = "";
  try {
    theme = localStorage.getItem("theme") ?? "";
  } catch {
    // The browser blocks storage, so the system's theme is used.
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();

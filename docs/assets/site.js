// What the theme makes while a page loads gets what a keyboard and a screen reader need: wide tables
// and code can be reached and scrolled, and the buttons of each code block have a name of their own.
(() => {
  const name = (element, text) => element.setAttribute("aria-label", text);
  const improve = () => {
    document.querySelectorAll("nav.md-code__nav").forEach((nav, k) => name(nav, `Code block ${k + 1}`));
    document.querySelectorAll(".md-typeset__scrollwrap").forEach((wrap, k) => {
      if (wrap.hasAttribute("tabindex")) return;
      wrap.setAttribute("tabindex", "0");
      wrap.setAttribute("role", "region");
      name(wrap, `Table ${k + 1}`);
    });
  };
  const reach = () => document.querySelectorAll("pre > code").forEach((code) => {
    if (code.scrollWidth > code.clientWidth) code.setAttribute("tabindex", "0");
  });
  const start = () => {
    improve();
    reach();
    window.addEventListener("resize", reach);
    new MutationObserver(improve).observe(document.body, { childList: true, subtree: true });
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();

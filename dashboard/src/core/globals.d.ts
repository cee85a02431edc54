/// <reference types="vite/client" />

interface TrustedTypePolicy {
  createScriptURL(url: string): unknown;
}

interface Window {
  trustedTypes?: {
    createPolicy(name: string, rules: { createScriptURL: (url: string) => string }): TrustedTypePolicy;
  };
}
